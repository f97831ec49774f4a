"""Between AnnData and arrays: the only floor that knows AnnData, scanpy and pandas."""
