import { eq, getTableColumns, type SQL, sql } from 'drizzle-orm';
import { type Database, query, type Transaction, transaction } from '../client.ts';
import { providerEndpoints, providerLocations, providerOtherNames, providers } from '../schema.ts';
import { providerKeys } from './keys.ts';

// What the NPI registry says of NPIs that no import has brought. An import knows better: its rows are never touched.

type Row = typeof providers.$inferSelect;

/** An active NPI as the registry has it, in the words of NPPES; empty fields are null. */
export interface RegistryProvider
  extends Readonly<
    Pick<
      Row,
      | ('npi' | 'lastName' | 'firstName' | 'middleName' | 'nameSuffix' | 'credential' | 'otherLastName')
      | ('otherFirstName' | 'organizationName' | 'parentName' | 'taxonomyCode' | 'updatedOn')
    >
  > {
  readonly entityType: 1 | 2;
  readonly practice: RegistryLocation | null;
  readonly endpoints: readonly RegistryEndpoint[];
  /** Of organizations. */
  readonly otherNames: readonly { readonly name: string; readonly typeCode: string }[];
  readonly locations: readonly RegistryLocation[];
}

/** Postal codes have five or nine digits. */
export type RegistryLocation = Readonly<
  Record<'line1' | 'line2' | 'city' | 'state' | 'postalCode' | 'phone', string | null>
>;

export type RegistryEndpoint = Omit<typeof providerEndpoints.$inferSelect, 'npi'>;

/** An import compares hashes to skip what has not changed; what the registry said must never look unchanged to it. */
const NO_HASH = 0;

/**
 * Of these NPIs those that the registry is to be asked about: no import has them, and the registry has not been asked
 * for a day (the etiquette of its public clients). An answer older than that stays in use until a newer one comes.
 */
export async function listRegistryDue(db: Database, npis: readonly string[]): Promise<string[]> {
  const rows = await query(db, (tx) =>
    tx.execute<{ npi: string }>(sql`
      select distinct asked.npi from unnest(${sql.param(npis)}::text[]) asked(npi)
       where not exists (
         select from providers p where p.npi = asked.npi
            and (p.origin = 'nppes' or p.imported_at > clock_timestamp() - interval '24 hours'))`),
  );
  return rows.map(({ npi }) => npi);
}

/**
 * Keeps what the registry says of an NPI, in place of what it said before. Changes nothing if an import has the NPI.
 */
export async function storeRegistryProvider(db: Database, provider: RegistryProvider): Promise<void> {
  const { npi, practice, endpoints, otherNames, locations, ...facts } = provider;
  await transaction(db, async (tx) => {
    const stored = await replaceRow(tx, npi, {
      ...facts,
      ...(practice && practiceOf(practice)),
    });
    if (!stored) return;
    // The registry may name one thing twice; the first counts.
    if (endpoints.length > 0) {
      await tx
        .insert(providerEndpoints)
        .values(endpoints.map((one) => ({ npi, ...one })))
        .onConflictDoNothing();
    }
    if (otherNames.length > 0) {
      await tx
        .insert(providerOtherNames)
        .values(otherNames.map((one) => ({ npi, ...one })))
        .onConflictDoNothing();
    }
    if (locations.length > 0) {
      await tx
        .insert(providerLocations)
        .values(locations.map((one) => locationRow(npi, one)))
        .onConflictDoNothing();
    }
  });
}

/**
 * Keeps that the registry has no active provider under an NPI: deactivated as of today, and nothing else. The row
 * closes the gate for a day; then the registry is asked again, because an NPI may be new or come back.
 * Changes nothing if an import has the NPI.
 */
export async function storeRegistryAbsence(db: Database, npi: string): Promise<void> {
  await transaction(db, async (tx) => {
    await replaceRow(tx, npi, { deactivatedOn: sql`current_date` });
  });
}

type RowFacts = Omit<typeof providers.$inferInsert, 'npi' | 'origin' | 'rowHash' | 'deactivatedOn'> & {
  readonly deactivatedOn?: SQL;
};

/** Whatever is not said anew is not known any more. */
const { npi: _npi, active: _active, ...COLUMNS } = getTableColumns(providers);
const NOTHING = Object.fromEntries(Object.keys(COLUMNS).map((name) => [name, null]));

/** Writes the row and removes what hung on the old one. False if an import has the NPI. */
async function replaceRow(tx: Transaction, npi: string, facts: RowFacts): Promise<boolean> {
  const row = {
    ...NOTHING,
    ...facts,
    origin: 'registry' as const,
    asOf: sql`current_date`,
    rowHash: NO_HASH,
    importedAt: sql`clock_timestamp()`,
  };
  const written = await tx
    .insert(providers)
    .values({ npi, ...row })
    .onConflictDoUpdate({ target: providers.npi, set: row, setWhere: sql`${providers.origin} = 'registry'` })
    .returning({ npi: providers.npi });
  if (written.length === 0) return false;
  await tx.delete(providerEndpoints).where(eq(providerEndpoints.npi, npi));
  await tx.delete(providerOtherNames).where(eq(providerOtherNames.npi, npi));
  await tx.delete(providerLocations).where(eq(providerLocations.npi, npi));
  return true;
}

function practiceOf(practice: RegistryLocation) {
  const { line1, line2, city, state, postalCode, phone } = practice;
  return {
    ...{ practiceLine1: line1, practiceLine2: line2, practiceCity: city, practiceState: state },
    ...{ practicePostalCode: postalCode, practicePhone: phone, ...providerKeys(practice) },
  };
}

function locationRow(npi: string, location: RegistryLocation): typeof providerLocations.$inferInsert {
  return {
    npi,
    line1: location.line1 ?? '',
    line2: location.line2 ?? '',
    city: location.city ?? '',
    state: location.state ?? '',
    postalCode: location.postalCode ?? '',
    phone: location.phone,
    ...providerKeys(location),
  };
}
