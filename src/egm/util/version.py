"""The version of this library, which every run records."""

VERSION = "0.1.0"
