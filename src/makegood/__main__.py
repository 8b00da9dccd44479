"""`python -m makegood` is the command `makegood`."""

from __future__ import annotations

from makegood.cli import main

if __name__ == "__main__":
    main()
