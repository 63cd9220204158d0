/* SPDX-License-Identifier: PostgreSQL */
/*
 * dpml.on_shards: a statement once in each shard of a distributed table.
 *
 * Citus runs the transition function where the rows of a shard are, in the
 * transaction of the query.  The first row of a shard runs the statement, with
 * the caller's rights, and the others do nothing.  Combined states are sums, so
 * the result is the number of rows of all statements together.  A shard of the
 * coordinator runs it in the caller's own session, whose settings must stay.
 */
#include "compat.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "lib/stringinfo.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "support.h"

DPML_FUNCTION(dpml_shard_id);
DPML_FUNCTION(dpml_on_shards_transition);

/* (tableoid oid): the number at the end of a shard's name; PARALLEL UNSAFE, so that its query may write */
Datum
dpml_shard_id(PG_FUNCTION_ARGS)
{
	char	   *name = get_rel_name(PG_GETARG_OID(0));
	char	   *number = name != NULL ? strrchr(name, '_') : NULL;
	char	   *end = NULL;
	int64		id = number != NULL ? strtoll(number + 1, &end, 10) : 0;

	if (id <= 0 || *end != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("the table is not a shard of a distributed table")));
	PG_RETURN_INT64(id);
}

/* The text with every token replaced. */
static char *
replace_all(const char *text, const char *token, const char *by)
{
	StringInfoData result;
	const char *found;

	initStringInfo(&result);
	while (token[0] != '\0' && (found = strstr(text, token)) != NULL)
	{
		appendBinaryStringInfo(&result, text, (int) (found - text));
		appendStringInfoString(&result, by);
		text = found + strlen(token);
	}
	appendStringInfoString(&result, text);
	return result.data;
}

/* Run a statement with $1; returns the rows of its last command.  Settings that it makes end with it. */
static int64
run_command(const char *command, Datum value, bool isnull)
{
	Oid			types[1] = {FLOAT8ARRAYOID};
	char		nulls[1] = {isnull ? 'n' : ' '};
	int			settings = NewGUCNestLevel();
	int			done;
	int64		rows;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "SPI_connect failed");
	done = SPI_execute_with_args(command, 1, types, &value, nulls, false, 0);
	if (done < 0)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("dpml.on_shards cannot run such a statement: %s", SPI_result_code_string(done)),
				 errhint("It runs no COPY, and no command that begins or ends a transaction.")));
	rows = (int64) SPI_processed;
	SPI_finish();
	/* Not as at a commit, which keeps what SET LOCAL made until the transaction ends. */
	AtEOXact_GUC(false, settings);
	return rows;
}

/* The command for a shard: token t stands for names[i][t], where i is the shard's place in shards. */
static char *
command_of(int64 shard, char *command, ArrayType *shards, ArrayType *tokens, ArrayType *names)
{
	const int64 *ids;
	Datum	   *token;
	Datum	   *name;
	int			n_tokens;
	int			n_names;
	int			n_shards = ArrayGetNItems(ARR_NDIM(shards), ARR_DIMS(shards));
	int			place = 0;

	if (array_contains_nulls(shards) || array_contains_nulls(tokens) || array_contains_nulls(names))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("shards, tokens and names must have no nulls")));
	deconstruct_array(tokens, TEXTOID, -1, false, TYPALIGN_INT, &token, NULL, &n_tokens);
	deconstruct_array(names, TEXTOID, -1, false, TYPALIGN_INT, &name, NULL, &n_names);
	if ((int64) n_names != (int64) n_shards * n_tokens)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("names must have an element for each shard and token: %d x %d, not %d", n_shards, n_tokens,
						n_names)));
	ids = (const int64 *) ARR_DATA_PTR(shards);
	while (place < n_shards && ids[place] != shard)
		place++;
	if (place == n_shards)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("shard " INT64_FORMAT " is not one of those that the statement is for", shard),
				 errhint("A shard was moved or split meanwhile: try again.")));
	for (int t = 0; t < n_tokens; t++)
		command = replace_all(command, TextDatumGetCString(token[t]),
							  TextDatumGetCString(name[place * n_tokens + t]));
	return command;
}

/* (state int8, shard int8, command text, shards int8[], tokens text[], names text[], value float8[]) */
Datum
dpml_on_shards_transition(PG_FUNCTION_ARGS)
{
	char	   *command;

	(void) dpml_aggregate_context(fcinfo, "on_shards");
	if (!PG_ARGISNULL(0))
		PG_RETURN_INT64(PG_GETARG_INT64(0));
	for (int i = 1; i < 6; i++)
	{
		if (PG_ARGISNULL(i))
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("shard, command, shards, tokens and names must not be null")));
	}
	command = command_of(PG_GETARG_INT64(1), text_to_cstring(PG_GETARG_TEXT_PP(2)), PG_GETARG_ARRAYTYPE_P(3),
						 PG_GETARG_ARRAYTYPE_P(4), PG_GETARG_ARRAYTYPE_P(5));
	PG_RETURN_INT64(run_command(command, PG_ARGISNULL(6) ? (Datum) 0 : PG_GETARG_DATUM(6), PG_ARGISNULL(6)));
}
