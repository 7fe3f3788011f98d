"""Base package: errors, shared types, settings base class, console. Imports no other subpackage of the toolkit."""
