import a_package_that_nobody_has  # noqa: F401  that it cannot be imported is what is broken
