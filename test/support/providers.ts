import { sql } from 'drizzle-orm';
import { type Database, query } from '../../db/connection/client.ts';
import { providerKeys } from '../../db/providers/keys.ts';
import {
  providerEndpoints,
  providerLocations,
  providerOtherNames,
  providers,
} from '../../db/schema.ts';
import type { EndpointKind } from '../../db/words.ts';

/** A practice location, as in NPPES or the files of CMS. */
export interface Place {
  readonly phone: string | null;
  readonly line1: string | null;
  readonly line2: string | null;
  readonly postalCode: string | null;
}

type Row = Partial<typeof providers.$inferInsert>;

export interface Endpoint {
  readonly kind?: EndpointKind;
  readonly endpoint: string;
  readonly affiliationName?: string | null;
}

/** Writes the providers of a test to the database, without the importers. */
export function providersIn(db: Database) {
  let issued = 0;

  /** Returns an NPI that no other test has, without a meaningful check digit. */
  function newNpi(): string {
    issued += 1;
    return `29${String(issued).padStart(8, '0')}`;
  }

  /** Returns a telephone number and a street that no other test has. */
  function newPlace(line2: string | null = null): Place & { readonly line1: string } {
    issued += 1;
    return {
      phone: `303555${1000 + issued}`,
      line1: `${1000 + issued} MAIN ST`,
      line2,
      postalCode: '80201',
    };
  }

  async function insert(
    row: Row,
    place: Place | null,
    endpoints: readonly Endpoint[] = [],
  ): Promise<string> {
    const npi = row.npi ?? newNpi();
    await query(db, async (tx) => {
      await tx.insert(providers).values({
        npi,
        origin: 'nppes',
        rowHash: 1,
        practiceLine1: place?.line1 ?? null,
        practiceLine2: place?.line2 ?? null,
        practicePostalCode: place?.postalCode ?? null,
        practicePhone: place?.phone ?? null,
        ...(place === null ? {} : providerKeys(place)),
        ...row,
      });
      if (endpoints.length === 0) return;
      await tx.insert(providerEndpoints).values(
        endpoints.map(({ kind = 'OTHERS', endpoint, affiliationName = null }) => {
          return { npi, kind, endpoint, affiliationName };
        }),
      );
    });
    return npi;
  }

  return {
    newNpi,
    newPlace,
    insert,
    async person(
      place: Place | null,
      endpoints: readonly Endpoint[] = [],
      row: Row = {},
    ) {
      return await insert(
        { entityType: 1, firstName: 'JANE', lastName: 'PUBLIC', ...row },
        place,
        endpoints,
      );
    },
    async practice(
      name: string | null,
      place: Place | null,
      endpoints: readonly Endpoint[] = [],
      row: Row = {},
    ) {
      return await insert(
        { entityType: 2, organizationName: name, ...row },
        place,
        endpoints,
      );
    },
    async otherName(npi: string, name: string, typeCode: string) {
      await query(db, (tx) =>
        tx.insert(providerOtherNames).values({ npi, name, typeCode }),
      );
    },
    async location(npi: string, state: string, place: Place) {
      const { line1, line2, postalCode, phone } = place;
      const address = {
        line1: line1 ?? '',
        line2: line2 ?? '',
        postalCode: postalCode ?? '',
      };
      const row = {
        npi,
        ...address,
        city: 'DENVER',
        state,
        phone,
        ...providerKeys(place),
      };
      await query(db, (tx) => tx.insert(providerLocations).values(row));
    },
    /**
     * Adds a row of CMS's "Doctors and Clinicians".
     * @param group its PAC ID and its legal name, or null without a group
     */
    async bills(
      npi: string,
      group: readonly [pacId: string, name: string] | null,
      place: Place,
      members: number | null = null,
    ) {
      const { phoneKey, addressKey } = providerKeys(place);
      const [pacId, name] = group ?? ['', null];
      await query(db, (tx) =>
        tx.execute(sql`insert into clinician_practices (npi, pac_id, phone_key, address_key, name, members)
          values (${npi}, ${pacId}, ${phoneKey ?? ''}, ${addressKey ?? ''}, ${name}, ${members})`),
      );
    },
  };
}
