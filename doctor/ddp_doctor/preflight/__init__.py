"""The verb `preflight`: is this machine ready, and do the nodes agree?"""
