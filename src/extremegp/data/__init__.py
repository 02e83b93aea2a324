"""Files and user input to checked matrices and labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from extremegp._lazy import lazily

if TYPE_CHECKING:
    from extremegp.data.arrays import read_array, read_inputs, read_npz, read_sparse
    from extremegp.data.block_features import BlockFeatures
    from extremegp.data.blocks import Dataset
    from extremegp.data.class_files import ClassDataset, classes_of_dataset, read_labels
    from extremegp.data.classes import ClassSpace, encode_classes, one_hot
    from extremegp.data.columns import Columns, read_columns, write_columns
    from extremegp.data.conllu import Sentences, read_conllu
    from extremegp.data.conversion import convert
    from extremegp.data.documents import document_features
    from extremegp.data.features import chosen_features, make_features, suited_features
    from extremegp.data.features_base import FeatureKind, Features
    from extremegp.data.formats import recognise_format
    from extremegp.data.images import deskew
    from extremegp.data.label_lists import read_label_lists
    from extremegp.data.label_sequences import encode_label_sequences
    from extremegp.data.labels import LabelSpace, encode_targets
    from extremegp.data.mapped import open_dataset
    from extremegp.data.mapped_writer import MappedWriter
    from extremegp.data.reading import read_dataset
    from extremegp.data.records import RecordColumns, Records, read_records
    from extremegp.data.schemes import (
        DetectedScheme,
        TaggedSpan,
        convert_tags,
        detect_scheme,
        legal_tags,
        spans_of,
        tags_of,
    )
    from extremegp.data.svmlight import read_svmlight
    from extremegp.data.tables import read_table
    from extremegp.data.templates import CHUNKING_TEMPLATE, Template
    from extremegp.data.text import TextDataset, read_jsonl, write_jsonl
    from extremegp.data.tokens import TokenFeatures, stack_arrays
    from extremegp.data.validation import check_inputs
    from extremegp.data.vocabulary import Vocabulary, read_vocabulary
    from extremegp.data.xc import read_xc, write_xc
    from extremegp.engine.matrices import FloatCSR, FloatMatrix

__all__ = [
    "CHUNKING_TEMPLATE",
    "BlockFeatures",
    "ClassDataset",
    "ClassSpace",
    "Columns",
    "Dataset",
    "DetectedScheme",
    "FeatureKind",
    "Features",
    "FloatCSR",
    "FloatMatrix",
    "LabelSpace",
    "MappedWriter",
    "RecordColumns",
    "Records",
    "Sentences",
    "TaggedSpan",
    "Template",
    "TextDataset",
    "TokenFeatures",
    "Vocabulary",
    "check_inputs",
    "chosen_features",
    "classes_of_dataset",
    "convert",
    "convert_tags",
    "deskew",
    "detect_scheme",
    "document_features",
    "encode_classes",
    "encode_label_sequences",
    "encode_targets",
    "legal_tags",
    "make_features",
    "one_hot",
    "open_dataset",
    "read_array",
    "read_columns",
    "read_conllu",
    "read_dataset",
    "read_inputs",
    "read_jsonl",
    "read_label_lists",
    "read_labels",
    "read_npz",
    "read_records",
    "read_sparse",
    "read_svmlight",
    "read_table",
    "read_vocabulary",
    "read_xc",
    "recognise_format",
    "spans_of",
    "stack_arrays",
    "suited_features",
    "tags_of",
    "write_columns",
    "write_jsonl",
    "write_xc",
]

# What only tells formats apart, as the command line does at first, loads neither scikit-learn nor PyTorch.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "extremegp.data.arrays": ("read_array", "read_inputs", "read_npz", "read_sparse"),
        "extremegp.data.block_features": ("BlockFeatures",),
        "extremegp.data.blocks": ("Dataset",),
        "extremegp.data.class_files": ("ClassDataset", "classes_of_dataset", "read_labels"),
        "extremegp.data.classes": ("ClassSpace", "encode_classes", "one_hot"),
        "extremegp.data.columns": ("Columns", "read_columns", "write_columns"),
        "extremegp.data.conllu": ("Sentences", "read_conllu"),
        "extremegp.data.documents": ("document_features",),
        "extremegp.data.conversion": ("convert",),
        "extremegp.data.features": ("chosen_features", "make_features", "suited_features"),
        "extremegp.data.features_base": ("FeatureKind", "Features"),
        "extremegp.data.formats": ("recognise_format",),
        "extremegp.data.images": ("deskew",),
        "extremegp.data.label_lists": ("read_label_lists",),
        "extremegp.data.label_sequences": ("encode_label_sequences",),
        "extremegp.data.labels": ("LabelSpace", "encode_targets"),
        "extremegp.data.mapped": ("open_dataset",),
        "extremegp.data.mapped_writer": ("MappedWriter",),
        "extremegp.data.records": ("RecordColumns", "Records", "read_records"),
        "extremegp.data.schemes": (
            "DetectedScheme",
            "TaggedSpan",
            "convert_tags",
            "detect_scheme",
            "legal_tags",
            "spans_of",
            "tags_of",
        ),
        "extremegp.data.svmlight": ("read_svmlight",),
        "extremegp.data.tables": ("read_table",),
        "extremegp.data.templates": ("CHUNKING_TEMPLATE", "Template"),
        "extremegp.data.text": ("TextDataset", "read_jsonl", "write_jsonl"),
        "extremegp.data.tokens": ("TokenFeatures", "stack_arrays"),
        "extremegp.data.validation": ("check_inputs",),
        "extremegp.data.vocabulary": ("Vocabulary", "read_vocabulary"),
        "extremegp.data.xc": ("read_xc", "write_xc"),
        "extremegp.engine.matrices": ("FloatCSR", "FloatMatrix"),
        "extremegp.data.reading": ("read_dataset",),
    },
)
