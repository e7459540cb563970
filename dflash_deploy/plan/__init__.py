"""Pure decisions: facts about the machine, a choice and the catalog in, one immutable Plan out."""
