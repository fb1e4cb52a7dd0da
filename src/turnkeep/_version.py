"""The release, for the package and for the schema it makes."""

VERSION = "0.1.0"
