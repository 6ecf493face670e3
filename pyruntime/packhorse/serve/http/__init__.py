"""Connections, requests and answers, whatever protocol they speak."""
