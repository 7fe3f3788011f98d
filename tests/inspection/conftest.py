from tests.preprocess import conftest as preprocessing

tokenizer_folder = preprocessing.tokenizer_folder
prepare = preprocessing.prepare
write_jsonl = preprocessing.write_jsonl
