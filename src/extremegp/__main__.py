"""`python -m extremegp`: the command line."""

from extremegp.cli import main

if __name__ == "__main__":
    main()
