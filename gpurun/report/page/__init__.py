"""The page of `gpurun report`: blocks of text, tables and pictures, as HTML or as Markdown."""
