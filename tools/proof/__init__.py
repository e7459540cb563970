"""What a machine can prove about dflash-deploy: steps with limits of their own, one JSON file and one page."""
