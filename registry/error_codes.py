"""The catalogue of errors: what each code means, what usually causes it, and what helps.

A code belongs to a kind of error, not to a sentence: messages may be reworded, a code is never given another meaning.
Findings of ``quantdispatch rules --check`` have codes in the same namespace (``QD101`` to ``QD401``, ``QD901``); errors
have the rest. ``docs/errors.md`` is made of this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .error_parts import PARTS, unnamed


@dataclass(frozen=True)
class ErrorCode:
    """One kind of error. ``error``: the class's name. ``python_only``: no option of the command leads to it.

    ``remedy`` is that of every error of the code whose place of origin knows no better one, and stands in its line.
    """

    code: str
    error: str
    meaning: str
    cause: str
    remedy: str
    python_only: bool = False

    @property
    def unnamed(self) -> Mapping[str, str]:
        """The parts that an error of this code need not name, each with the reason."""
        return unnamed(self.code)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts that every error of this code names, in its text and as attributes."""
        return tuple(part for part in PARTS if part not in self.unnamed)


_CONFIG, _FILES, _TENSORS = "ConfigError", "UnreadableCheckpointError", "CheckpointError"
_SCHEME, _KERNEL, _PLUGIN, _CALL = "NoSchemeFound", "NoKernelFound", "PluginError", "QuantDispatchError"
_MODEL = "install a version of transformers whose model fits, or check that the checkpoint is of this architecture"
_AGAIN = "download or write the file again"

_COMMAND: tuple[tuple[str, str, str, str, str], ...] = (
    ("QD501", _CONFIG, "there is no config.json",
     "the folder holds weights alone, or the name on the hub is of something that is not a model",
     "give the folder that has config.json, or the file itself"),
    ("QD502", _CONFIG, "a JSON file cannot be read as JSON",
     "it is empty, cut off, no UTF-8, no regular file, larger than any config, or holds no object",
     _AGAIN),
    ("QD503", _CONFIG, "the checkpoint does not say that it is quantized",
     "config.json has no quantization_config: it is the original model's, or the block was lost on saving",
     "load it as an ordinary model, or take config.json from the quantized checkpoint"),
    ("QD504", _CONFIG, "the checkpoint is quantized in another format than compressed-tensors",
     "quant_method is awq, gptq, fp8 or another library's",
     "install the plugin that the message names, or quantize the model with compressed-tensors"),
    ("QD505", _CONFIG, "a value of the quantization config is not of the kind that belongs there",
     "a key was edited by hand, or written by a tool that does not follow compressed-tensors",
     "correct this key"),
    ("QD506", _CONFIG, "a config group is a list of targets, and its name is no preset",
     "the short form of a group was used with a name of one's own",
     "name the group after a preset, such as W4A16, or write the group out"),
    ("QD507", _CONFIG, "no format is named for a group, and nothing else tells it",
     "a top-level format of mixed-precision, groups without one, and no weights to look at",
     "add a format to the group, or give the folder with the weights"),
    ("QD509", _CONFIG, "more or longer targets and ignore entries than will be read",
     "the config was generated with one entry for each tensor, or is meant to exhaust its reader",
     "use regular expressions or class names for many modules"),
    ("QD510", _CONFIG, "a regular expression in targets or ignore is not valid",
     "an unbalanced bracket, or a glob (*) where a regular expression is meant",
     "correct the pattern; .* stands for any characters"),
    ("QD511", _CONFIG, "a regular expression is longer, or repeats more, than will be tried",
     "nested counted repetition, or a list of names written as one pattern",
     "split the pattern, or list the names"),
    ("QD512", _CONFIG, "a regular expression ran out of time",
     "nested repetition, look-around or back-references, which only a slow engine can answer",
     "write it without them; google-re2 helps where it is not installed"),
    ("QD513", _CONFIG, "transform_config cannot be understood",
     "a key was edited by hand, or written by a later version of compressed-tensors",
     "correct this key, or take transform_config out if the weights were not transformed"),
    ("QD521", _CONFIG, "there is no such device",
     "a name that neither we nor torch know",
     "say cpu, cuda, cuda:sm90, rocm or rocm:gfx942 for a plan; cpu, cuda or cuda:N to load"),
    ("QD522", _CONFIG, "no device of this kind is present",
     "cuda or rocm was asked for by its bare name on a machine without one",
     "name the architecture (cuda:sm90): a plan can be made for a device that is not here"),
    ("QD525", _CONFIG, "an unknown allowance",
     "the value of allow= or --allow is misspelled",
     "use one of these names, or leave it out"),
    ("QD528", _CONFIG, "QUANTDISPATCH_ISA names an instruction set that this processor has not",
     "the variable was set for another machine",
     "unset QUANTDISPATCH_ISA, or choose one that is there"),
    ("QD529", _CONFIG, "a file of measured kernels cannot be read or written",
     "choices= or QUANTDISPATCH_CHOICES names no such file, another program changed it, or its folder is not writable",
     "measure again with quantdispatch bench, name another file with --out, or take the file away"),
    ("QD530", _CONFIG, "a package that this needs is not installed",
     "quantdispatch was installed without its extras",
     "pip install 'quantdispatch[transformers]'"),
    ("QD531", _CONFIG, "the installed transformers cannot build the model",
     "the architecture is newer than the installed release, or config.json contradicts itself",
     "install a version of transformers that has the architecture, or correct config.json"),
    ("QD532", _CONFIG, "the tokenizer or the chat template cannot be used",
     "the tokenizer's files were not copied beside the quantized weights, or the template has a mistake",
     "copy the tokenizer's files into the folder; correct or remove chat_template.jinja"),
    ("QD536", _CONFIG, "a new plugin cannot have this name or place",
     "the name is taken, or is none that a package can have; or the folder is there already",
     "take another name or --path"),
    ("QD601", _FILES, "there is no such file or folder",
     "a typing error, a relative path from another folder, or a hub id without its owner",
     "give a checkpoint folder, a config.json, or owner/name"),
    ("QD602", _FILES, "there are no weights",
     "only config.json was downloaded, the weights are in another format, or the files hold no tensor",
     "download the safetensors files, or convert the weights; a plan can be made of config.json alone"),
    ("QD603", _FILES, "the index contradicts the files",
     "model.safetensors.index.json is of another version of the model, or was edited",
     "download the index and the shards again, or write the index again"),
    ("QD604", _FILES, "a shard that the index names is not there",
     "the download was interrupted",
     "download the missing shard"),
    ("QD605", _FILES, "one tensor is stored in two files",
     "an older save lies in the same folder",
     "remove the file that does not belong to the checkpoint, or add an index"),
    ("QD606", _FILES, "a file is not a safetensors file, or its header is damaged",
     "a page of an error or a pointer of git-lfs was saved in place of the file, or bytes changed on the way",
     _AGAIN),
    ("QD607", _FILES, "a file ends before its data does",
     "the download or the copy was interrupted, or the disk was full",
     _AGAIN),
    ("QD608", _FILES, "a file cannot be read",
     "access rights, or the device that it is on",
     "check the path and its permissions"),
    ("QD609", _FILES, "the hub did not give what was asked for",
     "no connection, HF_HUB_OFFLINE, a gated or private repository, or no such name",
     "check the name, the connection and the access rights, or download the files first"),
    ("QD651", _TENSORS, "a layer is meant to stay dense and is stored quantized",
     "the ignore list names it, or no group does, but the tensors are packed",
     "remove the ignore entry, or add the name to its group's targets"),
    ("QD652", _TENSORS, "a layer is meant to be quantized and is stored dense",
     "the writer left it dense and its name is not in the ignore list, often because names changed on saving",
     "add its name to the ignore list"),
    ("QD653", _TENSORS, "stored tensors that no layer consumes",
     "the config describes another scheme than the file was written with, or the file has stray tensors",
     "compare the args in the config with how the layer was quantized"),
    ("QD654", _TENSORS, "a tensor that a layer needs is missing",
     "a missing shard, or a config that names another scheme than the file was written with",
     "look for the shard; compare the args with how the layer was quantized"),
    ("QD655", _TENSORS, "a stored tensor has the wrong dtype",
     "the weights were cast after they were packed, or the format is another",
     "write the checkpoint again with compressed-tensors, or correct the format"),
    ("QD656", _TENSORS, "a stored tensor has the wrong shape",
     "num_bits, group_size or strategy in the config are not those of the file",
     "correct the args in the config, or quantize the layer again with these"),
    ("QD657", _TENSORS, "the group size does not divide the layer's inputs",
     "a layer whose K is no multiple of group_size was quantized in groups",
     "quantize with a group size that divides K, or leave the layer dense"),
    ("QD658", _TENSORS, "stored values that no such tensor can hold",
     "scales that are NaN, infinite or zero, zero points out of range, or an order of groups that is none: a failed "
     "calibration, or damaged data",
     "quantize the layer again, or download the file again"),
    ("QD670", _TENSORS, "a stored layer has another shape than the model's",
     "config.json is of a model of another size, or the stored tensors are split or merged",
     _MODEL),
    ("QD671", _TENSORS, "a bias is stored and the model has none, or the other way round",
     "attention_bias or a like option in config.json is not what the model was quantized with",
     "correct the option in config.json, or add or remove the tensor"),
    ("QD672", _TENSORS, "the model has no module that a stored layer could replace",
     "the checkpoint is of another architecture, its names are, or the module computes more than a Linear",
     _MODEL),
    ("QD673", _TENSORS, "transformers merges or computes this module in a way that packed weights do not serve",
     "the model's own code, or another implementation of its experts",
     "install a version of transformers whose model takes other implementations"),
    ("QD674", _TENSORS, "the model's attention or cache does not serve a quantized cache",
     "attention that does not go through transformers' cache, or an encoder-decoder",
     "take kv_cache_scheme out of the config: the cache stays in the model's dtype"),
    ("QD675", _TENSORS, "a weight is shared with the embeddings and stored quantized",
     "tie_word_embeddings is true in config.json, though one of the two was quantized",
     "set tie_word_embeddings to false, and store a weight for each"),
    ("QD676", _TENSORS, "the stored experts are not those of the model",
     "a missing shard, or the number of experts in config.json",
     "look for the missing shard; compare the number of experts with config.json"),
    ("QD677", _TENSORS, "transformers could not load the unquantized tensors",
     "a tensor of another shape or dtype than the model's",
     _MODEL),
    ("QD701", _SCHEME, "no rule accepts the layer's quant args",
     "the args are a combination that no engine serves, or serves with a plugin that is not installed",
     "quantize the layer in a way that a rule accepts (quantdispatch rules lists them), or install a plugin for it"),
    ("QD751", _KERNEL, "the scheme is known, and no kernel computes it here",
     "the device, the dtype, the shape, the backend that was asked for, or a package that is missing",
     "leave out --backend, choose another device or dtype, or install what a kernel's reason names"),
    ("QD752", _KERNEL, "the native CPU kernels cannot be used",
     "they were not compiled when quantdispatch was installed, or belong to another version",
     "install quantdispatch again where there is a C++ compiler, or choose another backend"),
    ("QD753", _KERNEL, "a transform of the checkpoint cannot be applied at this layer",
     "its type, place or size is one that no kernel applies",
     "use a checkpoint without this transform, or a plugin with a scheme for it"),
    ("QD803", _CALL, "a kernel cannot hold these weights",
     "Marlin's layout has no room for NaN weights, very small scales or scales that overflow",
     "choose another backend for this checkpoint"),
    ("QD911", _PLUGIN, "a plugin, or what a plugin points to, cannot be imported",
     "a dependency of the plugin is missing or of another version",
     "see quantdispatch doctor; update or uninstall the plugin"),
    ("QD912", _PLUGIN, "a plugin registers something that is not what it says",
     "a rule, scheme or kernel of another type, or one name twice",
     "report it to the plugin's authors"),
    ("QD913", _PLUGIN, "a plugin is made for another version of the plugin interface",
     "an older plugin with a newer quantdispatch, or the other way round",
     "install a matching release of either"),
    ("QD915", _PLUGIN, "a plugin's scheme or translation fails",
     "a mistake in the plugin",
     "report it to the plugin's authors"),
)  # fmt: skip

_PYTHON: tuple[tuple[str, str, str, str, str], ...] = (
    ("QD500", _CONFIG, "an error of a configuration that has no code of its own", "a plugin raised it",
     "ask the plugin's authors"),
    ("QD508", _CONFIG, "targets or ignore is not a list of strings",
     "a single string was written for a list, or a number or null stands among the names",
     "write a list of strings"),
    ("QD514", _CONFIG, "no Hadamard matrix of this size can be made",
     "a transform without a stored matrix whose size is no power of two",
     "store the matrix in the checkpoint"),
    ("QD515", _CONFIG, "layers that are one module at run time are quantized differently",
     "an engine merges q, k and v or gate and up, and the config gives them different args",
     "quantize these layers alike, or ignore all of them"),
    ("QD520", _CONFIG, "nothing was given to plan",
     "source is None, empty, or of a type that no checkpoint has",
     "give a checkpoint folder, a config.json, a hub id or a dict"),
    ("QD523", _CONFIG, "environment= is not facts and values",
     "a name that is no fact, or a value that none can have",
     "use one of the names, with a value of its kind"),
    ("QD524", _CONFIG, "modules= is not module names and class names",
     "something else than a dict of strings",
     "write {'model.layers.0.mlp.down_proj': 'Linear'}"),
    ("QD526", _CONFIG, "activations cannot have this dtype", "dtype= is misspelled, or no floating-point type",
     "use one of these"),
    ("QD527", _CONFIG, "tensor_parallel= is not a number of ranks", "zero, a negative number or no integer",
     "give 1 or more"),
    ("QD533", _CONFIG, "transformers was asked for something that packed weights cannot do",
     "an option of from_pretrained: variant, state_dict, offloading, or optimized inference",
     "leave the option out"),
    ("QD534", _CONFIG, "generation was asked for another cache than the checkpoint's",
     "cache_implementation or a cache object together with a kv_cache_scheme",
     "leave the option out"),
    ("QD600", _FILES, "an error of a file that has no code of its own", "a plugin raised it",
     "ask the plugin's authors"),
    ("QD610", _FILES, "a tensor is known by its header only", "a plan of a hub id was used to read values",
     "download the checkpoint and give its folder"),
    ("QD611", _FILES, "a stored dtype has no name in this version of torch",
     "the file is newer than the installed torch", "install a newer torch"),
    ("QD650", _TENSORS, "an error of a stored tensor that has no code of its own", "a plugin raised it",
     "ask the plugin's authors"),
    ("QD659", _TENSORS, "a layer cannot be split over so many ranks",
     "tensor_parallel= does not divide the layer's rows, groups or packed words",
     "take fewer ranks"),
    ("QD700", _SCHEME, "a missing rule that has no code of its own", "a plugin raised it",
     "ask the plugin's authors"),
    ("QD750", _KERNEL, "a missing kernel that has no code of its own", "a plugin raised it",
     "ask the plugin's authors"),
    ("QD801", _CALL, "an input does not fit the layer that it is given to",
     "a layer was called with a tensor of another width, dtype or device than it was bound to",
     "give it activations of the width and dtype that it was loaded for, on its own device"),
    ("QD802", _CALL, "quantized kernels have no gradient",
     "a packed layer was called where gradients are recorded",
     "call the model under torch.no_grad() or torch.inference_mode()"),
    ("QD804", _CALL, "a kernel is bound or called in a way that it was not made for",
     "a plugin's scheme or kernel leaves something out, or code calls a kernel past the layer that it belongs to",
     "report it, with the scheme and the kernel that the plan shows, to who made them"),
    ("QD900", "QuantDispatchError", "an error of a plugin's own class", "a plugin raised it",
     "ask the plugin's authors"),
    ("QD910", _PLUGIN, "an error of a plugin that has no code of its own", "a plugin raised it",
     "ask the plugin's authors"),
    ("QD914", _PLUGIN, "rules that conflict were put into one table",
     "RuleTable.build() with overlapping rules, none of which overrides the others",
     "let one of them say overrides=(...)"),
    ("QD916", _PLUGIN, "an unknown backend", "backend= is misspelled, or its plugin is not installed",
     "use one of these names; quantdispatch doctor shows which plugins are installed"),
    ("QD950", "PlanError", "layers of the checkpoint do not resolve", "errors= holds each layer's own error",
     "see the codes of those"),
    ("QD960", "TableError", "a dispatch table cannot be meant as it is written",
     "an unknown key, an id given twice, or nothing expected",
     "correct this row of the table"),
)  # fmt: skip

#: every code, in order
CATALOGUE: dict[str, ErrorCode] = {
    row.code: row
    for row in sorted(
        [*(ErrorCode(*fields) for fields in _COMMAND), *(ErrorCode(*fields, python_only=True) for fields in _PYTHON)],
        key=lambda row: row.code,
    )
}
