"""Test helpers: modules here serve several rooms, a folder serves one."""
