"""Verbs that prepare data, train, plan a training and watch one."""
