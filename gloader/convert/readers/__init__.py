"""Readers for the sources' files, in bounded memory."""
