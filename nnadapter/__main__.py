"""`python -m nnadapter`: the command line."""

from nnadapter.cli import main

if __name__ == "__main__":
    main(prog_name="nnadapter")
