"""Turns on a real model: llama.cpp with SmolLM2, on loopback."""
