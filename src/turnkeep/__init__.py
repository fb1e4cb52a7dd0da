"""Agent conversations that survive `kill -9`, in the Postgres you already run."""
