"""What tests of all folders import lies beside this file."""
