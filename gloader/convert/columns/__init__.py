"""Columns of tables as features, labels and splits."""
