"""The actors of worlds of turns, each as the moves that it may make in a state."""
