"""Do two launches train, or infer, the same? Audits -> named distances -> one verdict."""
