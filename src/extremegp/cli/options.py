"""The options of the commands: each is described once, here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

TaskName: TypeAlias = Literal["multilabel", "multiclass", "sequence"]
ModelKind: TypeAlias = Literal["factor", "tree"]
FormatName: TypeAlias = Literal["auto", "xc", "svmlight", "jsonl", "annif", "csv", "tsv"]
RankedBy: TypeAlias = Literal["utility", "probability"]
DecidedBy: TypeAlias = Literal["f1", "cost", "size", "threshold"]
Decoding: TypeAlias = Literal["max-marginal", "viterbi"]
SchemeName: TypeAlias = Literal["auto", "none", "IOB1", "IOB2", "IOBES", "BILOU"]

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a model that `train` wrote.")]
Json = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON to a file; '-' is standard output, alone."),
]
Everything = Annotated[
    bool, typer.Option("--all", help="Show all settings that follow from those given, and sizes, too.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show only errors and warnings.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Equal seeds give equal models.")]
TrainingData = Annotated[Path, typer.Argument(metavar="DATA", help="Labelled training data.")]
TestData = Annotated[
    Path, typer.Argument(metavar="DATA", help="Labelled data that the model was not trained on; '-' is standard input.")
]
LearntData = Annotated[Path, typer.Argument(metavar="DATA", help="Labelled rows to learn; '-' is standard input.")]
Ids = Annotated[
    Path | None,
    typer.Option("--ids", metavar="FILE", help="What the rows are called, a line each; '-' is standard input."),
]
ForgottenIds = Annotated[
    Path, typer.Option("--ids", metavar="FILE", help="Which rows to forget, a line each; '-' is standard input.")
]
ExportedTo = Annotated[
    Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write: .onnx, or .npz for NumPy alone.")
]
Models = Annotated[list[Path], typer.Argument(metavar="MODEL...", help="Folders of models that `train` wrote.")]
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of this machine's.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any that is free.")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="File with the token that a change of a model needs."),
]
MaxBody = Annotated[int, typer.Option(min=1024, max=1 << 30, help="Bytes that a request may have.")]
MaxDocuments = Annotated[int, typer.Option(min=1, max=10_000, help="Documents that a request may have.")]
Queue = Annotated[int, typer.Option(min=1, max=1_000_000, help="Documents of a model that may wait.")]
Timeout = Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds until a request is given up.")]
NewLabels = Annotated[
    Literal["add", "error", "ignore"],
    typer.Option(help="What to do with labels that the model has not: know them from now on, refuse, or leave out."),
]
NewData = Annotated[
    Path, typer.Argument(metavar="DATA", help="Rows to label; labels in the file are ignored; '-' is standard input.")
]
Pool = Annotated[
    Path,
    typer.Argument(metavar="DATA", help="Rows to choose from; labels in the file are ignored; '-' is standard input."),
]
NChosen = Annotated[int, typer.Option("--n", "-n", metavar="N", min=1, help="Rows to choose.")]
ChosenBy = Annotated[
    Literal["posterior", "least_confidence", "bald", "random"],
    typer.Option(
        "--by",
        help="Rows together, by the log-determinant of their posterior covariance and the entropies of their labels; "
        "one by one by these entropies, or by the mutual information of labels and utilities; or at random.",
    ),
]
ChoiceSeed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Equal seeds choose equal rows.")]
Chosen = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="Where to write, in the format of the suffix: .csv, .jsonl or .json (each may add .gz, .bz2, .xz or "
        ".zst); '-' is standard output.",
    ),
]
ToTasks = Annotated[
    Literal["csv", "jsonl", "label-studio"] | None,
    typer.Option("--to", help="The format, whatever --out ends in; of standard output jsonl by default."),
]
Format = Annotated[
    FormatName,
    typer.Option(
        "--format",
        help="Format of text data: 'xc' (a header 'N D K', then rows 'l1,l2 f:v f:v', counted from 0), 'svmlight' "
        "(such rows without header; features count from 1 unless a feature 0 occurs) or 'jsonl' (lines like "
        '{"text": "...", "labels": ["a"]}), \'annif\' (a text, a tab and URIs a line), or tables by name (\'csv\', '
        "'tsv'); 'auto' looks at the suffix and the first line, and recognises arrays (.npy, IDX), .npz, tables (.csv, "
        ".tsv, .parquet), folders of texts (NAME.txt with NAME.key or NAME.tsv) and of `extremegp convert` too. Files "
        "may be compressed (.gz, .bz2, .xz, .zst).",
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        help="The class of every row in a file of its own: .npy, IDX, or text with one a line. Or, of many labels per "
        "row, their lists, a row a line (--label-separator), or a matrix rows x labels as .npy or sparse .npz.",
    ),
]
IgnoreLabels = Annotated[
    bool, typer.Option("--ignore-labels", help="Take labels from --labels alone, though DATA has labels of its own.")
]
TextColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--text-column",
        metavar="COLUMN",
        help="A column of a table, or a key of JSON lines, that has texts; several, by repetition, are joined.",
    ),
]
VectorColumn = Annotated[
    list[str] | None,
    typer.Option(
        "--vector-column",
        metavar="COLUMN",
        help="A column with lists of numbers, such as embeddings; or columns of numbers, by repetition or a pattern "
        "such as 'emb_*'. Beside texts, or alone.",
    ),
]
Vectors = Annotated[
    Path | None,
    typer.Option("--vectors", metavar="FILE", help="A .npy array with a vector for every row, beside its text."),
]
ValidVectors = Annotated[
    Path | None, typer.Option("--valid-vectors", metavar="FILE", help="The vectors of --valid, as --vectors for DATA.")
]
LabelsColumn = Annotated[
    str | None,
    typer.Option(
        "--labels-column",
        metavar="COLUMN",
        help="The column that has the labels of a row: lists, or texts with --label-separator between labels.",
    ),
]
LabelColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--label-columns",
        metavar="COLUMNS",
        help="Columns of 0 and 1, one for each label, by repetition or a pattern such as 'tag_*'.",
    ),
]
LabelSeparator = Annotated[
    str | None,
    typer.Option(
        "--label-separator",
        metavar="TEXT",
        help=r"What stands between labels in --labels-column or in a line of --labels, such as ';' or '\t'.",
    ),
]
IdColumn = Annotated[
    str | None,
    typer.Option("--id-column", metavar="COLUMN", help="The column of what rows are called; predictions repeat it."),
]
WeightColumn = Annotated[
    str | None,
    typer.Option("--weight-column", metavar="COLUMN", help="The column of the weights that rows have in training."),
]
VocabularyFile = Annotated[
    Path | None,
    typer.Option(
        "--vocabulary",
        metavar="FILE",
        help="What labels are called: .tsv (identifier, tab, name), .csv (uri, label_en) or SKOS (.ttl, .rdf; needs "
        "rdflib). Deprecated labels are replaced where it says by what.",
    ),
]
Language = Annotated[str, typer.Option("--language", metavar="CODE", help="Of the names in --vocabulary.")]
XKey = Annotated[
    str | None, typer.Option("--x-key", metavar="NAME", help="The array of an .npz file that has the inputs.")
]
YKey = Annotated[
    str | None, typer.Option("--y-key", metavar="NAME", help="The array of an .npz file that has the classes.")
]
LabelColumn = Annotated[
    str | None,
    typer.Option(
        "--label-column",
        metavar="COLUMN",
        help="The column of a table that has the classes, by name or number (from 0, or from the end if negative); the "
        "others are features, unless --text-column or --vector-column names these.",
    ),
]
FirstLabel = Annotated[
    bool,
    typer.Option(
        "--first-label",
        help="Of data with several labels per row take the first, in the order of the file, as the class; rows without "
        "labels are left out.",
    ),
]
LabelsNames = Annotated[
    Path | None,
    typer.Option(
        "--labels-names", metavar="FILE", help="Names of many labels, one a line, in the order of their numbers."
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        "--separator",
        metavar="TEXT",
        help=r"What separates columns, such as ',' or '\t'; by default runs of blanks. For sequences.",
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", metavar="NAME", help="Encoding of files in columns; by default utf-8. For sequences."),
]
ModelFolder = Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="Folder to write the model to.")]
TaskChoice = Annotated[
    Literal["auto", "multilabel", "multiclass", "sequence"],
    typer.Option(
        "--task",
        help="Many labels per row, one class per row, or a label for every token of sequences. 'auto' is "
        "'sequence' with --template, 'multilabel' with --labels-column, --label-columns or --label-separator, "
        "'multiclass' for other arrays, .npz files and tables and with --labels or --first-label, and what a preset is "
        "for.",
    ),
]
Valid = Annotated[
    Path | None,
    typer.Option(
        "--valid", metavar="FILE", help="Data to choose the best epoch on, by P@1 or accuracy; same format as DATA."
    ),
]
ValidLabels = Annotated[
    Path | None,
    typer.Option("--valid-labels", metavar="FILE", help="The class of every row of --valid, as --labels for DATA."),
]
ModelChoice = Annotated[
    Literal["auto", "factor", "tree"],
    typer.Option(
        "--model",
        help="For many labels per row: a factor model (MultiLabelGPClassifier) or label trees "
        "(LabelTreeGPClassifier). 'auto' tries both on a few thousand rows from 2000 to 100,000 labels, and takes "
        "label trees beyond, unless a preset or --set says otherwise.",
    ),
]
PresetName = Annotated[
    str | None, typer.Option("--preset", metavar="NAME", help="A method of the papers; `extremegp presets` lists them.")
]
Features = Annotated[
    str | None,
    typer.Option(
        "--features",
        metavar="NAME",
        help="What to do to the inputs first: 'unit' scales rows to unit norm, 'tfidf' weighs counts, 'raw' leaves "
        "them alone, 'text' makes tf-idf of texts; also 'scale' (all features divided by one number), "
        "'root' (the same for their square roots), 'standard' (each to mean 0 and the same variance) and 'auto', "
        "which chooses and is the default: 'text' for texts, 'unit' for sparse rows, else 'root' or 'standard'.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any parameter of MultiLabelGPClassifier, LabelTreeGPClassifier, MultiClassGPClassifier or "
        "SequenceGPClassifier, such as n_inducing=600 or epochs=20; may be repeated, and beats the preset and the "
        "other options.",
    ),
]
WordSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="What the words of texts are: analyzer, ngram_range or lowercase, as parameters of the estimators; may be "
        "repeated.",
    ),
]
Template = Annotated[
    Path | None,
    typer.Option(
        "--template",
        metavar="FILE",
        help="CRF++ template of the features of tokens, stored in the model. By default every column of the tokens "
        "-2 to 2, its pairs of neighbours, and B. For sequences.",
    ),
]
TimeBudget = Annotated[
    str | None,
    typer.Option("--time-budget", metavar="TIME", help="Plan training to take so long: 90s, 10m, 1h30m, or seconds."),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="Plan training to take no more memory than so much, such as 8G or 500M; settings that are not given "
        "are lowered for it.",
    ),
]
OverwriteModel = Annotated[bool, typer.Option("--overwrite", help="Replace a model that is at MODEL already.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Discard the checkpoint of an interrupted run.")]
By = Annotated[
    RankedBy | None,
    typer.Option(
        "--by", help="Rank by probability, the default, or by mean utility as in the papers. For many labels per row."
    ),
]
Decide = Annotated[
    DecidedBy | None,
    typer.Option(
        "--decide",
        help="Give each row a set of labels in place of its best: with the highest expected F1, the lowest expected "
        "cost, as many as --top-k, or of a probability of --threshold or more. For many labels per row.",
    ),
]
CostWrong = Annotated[
    float | None,
    typer.Option("--cost-wrong", metavar="COST", help="Of a wrong label, for --decide cost; 1 by default."),
]
CostMissed = Annotated[float | None, typer.Option("--cost-missed", metavar="COST", help="Of a missed label, likewise.")]
LeastF1 = Annotated[
    float | None,
    typer.Option(
        "--least-f1", metavar="F1", help="Give no labels where the expected F1 of the set is less: ask a person."
    ),
]
Promise = Annotated[
    Path | None,
    typer.Option(
        "--promise",
        metavar="FILE",
        help="Give each row the set of labels that keeps what `extremegp guarantee` promised in FILE.",
    ),
]
Promised = Annotated[
    Literal["recall", "precision", "all"] | None,
    typer.Option("--promise", help="What sets are to hold, of many labels per row; recall by default."),
]
Level = Annotated[float, typer.Option("--level", metavar="SHARE", help="How much of it.")]
PromisedPer = Annotated[
    Literal["all", "band", "class"],
    typer.Option("--per", help="For all labels together, each band of them by frequency, or each class."),
]
Confidence = Annotated[
    float | None,
    typer.Option("--confidence", metavar="SHARE", help="That a promise of precision holds; 0.9 by default."),
]
PromiseOut = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write the guarantee, as JSON.")]
DecodingChoice = Annotated[
    Decoding | None,
    typer.Option(
        "--decoding",
        help="The most probable label of every token, or the most probable sequence; by default as the model was "
        "trained, which is max-marginal unless set. For sequences.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="Where to write, in the format of the suffix: .jsonl, .tsv, .csv, .txt (each may add .gz, .bz2, .xz "
        "or .zst) or .npz; '-' is standard output, in the format of --to. For sequences columns, by default to "
        "standard output.",
    ),
]
To = Annotated[
    Literal["jsonl", "tsv", "csv", "txt"],
    typer.Option("--to", help="The format of what --out - writes to standard output."),
]
TopK = Annotated[int, typer.Option("--top-k", "-k", min=1, help="Labels or classes per row.")]
Given = Annotated[
    Path | None,
    typer.Option(
        "--given",
        metavar="FILE",
        help="Labels that are known already, a row for each row of DATA: the others are predicted given these, "
        "which are left out. Of sequences the same tokens with their labels in the last column, and "
        "--unknown-label where there is none; these are kept. For many labels per row, and for sequences.",
    ),
]
Scheme = Annotated[
    SchemeName | None,
    typer.Option(
        "--scheme",
        help="Keep the rules of a scheme of tags in predictions, such as that I-X follows B-X or I-X: 'auto' is that "
        "of the training labels, 'none' allows anything. By default as the model was trained. For sequences.",
    ),
]
TargetScheme = Annotated[
    Literal["IOB1", "IOB2", "IOBES", "BILOU"] | None,
    typer.Option("--scheme", help="Write the labels of a file in columns, OUT, in this scheme, whatever theirs is."),
]
LabelField = Annotated[
    str | None,
    typer.Option(
        "--label-field",
        metavar="FIELD",
        help="Write a file in columns, OUT, of one of CoNLL-U, with this field as the label, such as upos; _ where a "
        "word has none.",
    ),
]
Fields = Annotated[
    str,
    typer.Option(
        "--fields", metavar="FIELD,FIELD", help="The fields of CoNLL-U that are columns beside it, for --label-field."
    ),
]
Spans = Annotated[
    bool,
    typer.Option(
        "--spans", help="Write spans in place of tokens, with their probabilities: .tsv, or .jsonl. For sequences."
    ),
]
UnknownLabel = Annotated[
    str | None,
    typer.Option(
        "--unknown-label",
        metavar="MARK",
        help="What stands in the label column of tokens whose label is not known, such as _ or ?. For sequences.",
    ),
]
Uncertainty = Annotated[
    bool,
    typer.Option(
        "--uncertainty",
        help="Add how uncertain the labels of a row, or of a token, are, in nats: total, of which aleatoric is in the "
        "data and epistemic would go with more of them; the variance of their utilities; and novelty, a p-value beside "
        "the training rows. Rows need .jsonl, .tsv or .csv.",
    ),
]
NoveltyThreshold = Annotated[
    float | None,
    typer.Option(
        "--novelty-threshold",
        metavar="P",
        help="Mark rows or tokens that are new, whose p-value is below this, such as 0.01: that share of those like "
        "training is marked too. Rows need .jsonl, .tsv or .csv.",
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Say why: of every predicted label the shares of training documents and of features. Needs .jsonl, or "
        ".txt for tables to read, and a model that keeps its training rows; each row takes as long as hundreds of "
        "predictions. Not for sequences.",
    ),
]
Approximate = Annotated[
    float | None,
    typer.Option(
        "--approximate",
        metavar="RECALL",
        help="Find this share of the exact best labels, such as 0.98, by an index of the labels: much faster where "
        "there are very many. Needs the extra extremegp[ann]. For many labels per row.",
    ),
]
KBest = Annotated[
    int | None,
    typer.Option(
        "--k-best", metavar="K", min=1, max=10_000, help="Write the K most probable labellings. For sequences."
    ),
]
Probabilities = Annotated[
    bool, typer.Option("--probabilities", help="Add the marginal probability of every label. For sequences.")
]
Ks = Annotated[str, typer.Option("--ks", metavar="K,K,...", help="Ranks to evaluate at.")]
Propensity = Annotated[
    str | None,
    typer.Option(
        "--propensity",
        metavar="NAME|A,B",
        help="Propensities of the PSP metrics: 'default' (0.55,1.5), 'wikipedia' (0.5,0.4), 'amazon' (0.6,2.6), or "
        "two numbers; with the label counts of the training data. For many labels per row.",
    ),
]
PerClass = Annotated[
    Path | None,
    typer.Option(
        "--per-class",
        metavar="FILE",
        help="Write a line per class or label to a .csv or .tsv file: class, support, predicted, precision, recall, "
        "f1; of many labels also the best threshold and what it gives, average precision and calibration.",
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="Draw the reliability diagram to a .png, .svg or .pdf file, beside it what is taken for what, or of many "
        "labels the curve of precision over recall.",
    ),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        metavar="P",
        help="Predict labels of this probability or more, by default 0.5. For many labels per row.",
    ),
]
ReportFile = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page to write: .html.")]
Title = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Of the page; by default MODEL on DATA.")]
NoRows = Annotated[
    bool,
    typer.Option("--no-rows", help="Leave out what rows of DATA say, and what they are called, as of private data."),
]
ReportSeed = Annotated[
    int, typer.Option("--seed", min=0, max=2**32 - 1, help="Decides which rows are drawn, for intervals and examples.")
]
SourceData = Annotated[
    Path, typer.Argument(metavar="DATA", help="Data with many labels per row; '-' is standard input.")
]
Folder = Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write the data set to.")]
SourceFormat = Annotated[
    FormatName, typer.Option("--format", help="Format of DATA; 'auto' looks at the suffix and the first line.")
]
Like = Annotated[
    Path | None,
    typer.Option(
        "--like",
        metavar="FOLDER",
        help="A converted data set whose features and labels DATA have: convert test data like training data.",
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a data set that is at OUT already.")]
Save = Annotated[
    Path | None, typer.Option("--save", metavar="FOLDER", help="Keep the model there, for `predict` and `info`.")
]
