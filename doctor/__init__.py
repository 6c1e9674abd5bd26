"""The doctor as it lies in the checkout: the package is ddp_doctor, see README.md."""
