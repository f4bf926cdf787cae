/** Settings of drizzle-kit, which `npm run migration` runs in the root folder. */
export default {
  dialect: 'postgresql',
  schema: './db/schema.ts',
  out: './db/migrations',
  // A migration is sent to the database as one text.
  breakpoints: false,
};
