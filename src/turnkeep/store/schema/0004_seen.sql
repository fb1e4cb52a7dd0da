-- A save can say which checkpoint it has seen at the head. Functions whose parameters have changed are made anew.

DROP FUNCTION IF EXISTS {schema}.save_v1;
