"""Runs as they are known by their ids: their records, their events, and how they are ended from outside."""
