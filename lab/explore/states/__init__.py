"""A state of a world: its canonical form, a database in which it is loaded, and what must hold in it."""
