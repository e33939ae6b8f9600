"""Helpers of tests: here those of several rooms, in a folder those of one."""
