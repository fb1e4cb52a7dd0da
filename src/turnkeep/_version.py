"""The release, for the package and for the schema it makes."""

VERSION = "0.3.0"

# The newest numbered migration, which a database must have for this release to work with it.
REVISION = 6
