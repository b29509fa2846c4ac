"""S3 with an assumed role: a profile names the role, and no key is in the script.

    AWS_PROFILE=trainer python examples/cookbook/roles.py 's3://bucket/train-{000..099}.tar'

The daemon asks STS for the role's credentials with this job's variables, and asks again before they
expire. roles.config beside this file is such a profile.
"""

import sys

import forebay


def main() -> None:
    """Read one epoch."""
    loader = forebay.DataLoader(sys.argv[1], batch_size=8, fields={"label": forebay.Int("cls")})
    print(f"{sum(len(batch['label']) for batch in loader)} samples")


if __name__ == "__main__":
    main()
