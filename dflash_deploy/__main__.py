"""`python -m dflash_deploy` is the same as `dflash-deploy`."""

from dflash_deploy.cli.app import main

if __name__ == "__main__":
    main()
