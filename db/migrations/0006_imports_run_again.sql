-- An import that was interrupted is run again from the beginning: what it has written already is what it would write.
alter table import_runs drop column checkpoint;
