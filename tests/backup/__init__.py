"""Backups and restores of real stores."""
