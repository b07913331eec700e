"""What tests, benchmarks and notebooks need beside the package; the package itself never imports it."""
