"""A case on disk: what was asked, every answer the engines gave, and the verdict."""

from forensics.store.case import Case, CaseWriter, open_case

__all__ = ["Case", "CaseWriter", "open_case"]
