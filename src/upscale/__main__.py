"""`python -m upscale`: the same as `upscale`."""

from upscale.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
