// All tables, with their columns, checks, indexes, and foreign keys. `npm run migration` compares
// them with the newest migration and generates the next one (RECIPES.md, A migration). Functions,
// triggers, and what drizzle cannot express are migrations written by hand.
//
// Expressions are SQL with the names of columns, so that they can be pasted into psql. They may call
// the functions of 0000_functions.sql.

export * from './schema/accounts.ts';
export * from './schema/credits.ts';
export * from './schema/lookups.ts';
export * from './schema/operations.ts';
export * from './schema/privacy.ts';
export * from './schema/providers.ts';
export * from './schema/requests.ts';
export * from './schema/uploads.ts';
export * from './schema/webhooks.ts';
