"""Maintenance duties. Each is one file with one `run_once`, so that a test can call it on a prepared store."""
