"""Watches, profiles and measures runs."""
