"""Does a change train the same? Curves, gradients, outputs and contents of batches, compared."""
