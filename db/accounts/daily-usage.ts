import { and, asc, eq, sql } from 'drizzle-orm';
import { type Database, moment, query } from '../connection/client.ts';
import { dailyUsage } from '../schema.ts';

/** Lists an organization's usage of whole UTC days, by day and then by requested type. */
export async function listDailyUsage(
  db: Database,
  organizationId: string,
  { since, until }: { readonly since: Date; readonly until: Date },
) {
  return await query(db, (tx) =>
    tx
      .select()
      .from(dailyUsage)
      .where(
        and(
          eq(dailyUsage.organizationId, organizationId),
          sql`day >= date(${moment(since)} at time zone 'UTC')`,
          sql`day < date(${moment(until)} at time zone 'UTC')`,
        ),
      )
      .orderBy(asc(dailyUsage.day), asc(dailyUsage.requestedType)),
  );
}
