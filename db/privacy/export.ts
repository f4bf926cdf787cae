import { and, asc, eq, getTableColumns, isNull, or, sql } from 'drizzle-orm';
import { type Database, query, type Transaction } from '../client.ts';
import {
  emailChecks,
  lookups,
  providerEndpoints,
  providerLocations,
  providers,
  requests,
  storedEmails,
  suppressions,
  webhookDeliveries,
} from '../schema.ts';
import type { DataSubject } from './privacy.ts';
import { hashAddress } from './suppressions.ts';

// What is held about a person, for them to have. Organizations appear by their ids: whom they are is not the person's
// data. `custom_data` is the customer's own, and left out.

const {
  rowHash: _rowHash,
  phoneKey: _phoneKey,
  addressKey: _addressKey,
  ...PROVIDER
} = getTableColumns(providers);
const {
  phoneKey: _locationPhone,
  addressKey: _locationAddress,
  ...LOCATION
} = getTableColumns(providerLocations);
const ANSWER = {
  id: requests.id,
  batchId: requests.batchId,
  organizationId: requests.organizationId,
  npi: requests.npi,
  status: requests.status,
  email: requests.email,
  emailType: requests.emailType,
  emailLastValidatedAt: requests.emailLastValidatedAt,
  acceptedAt: requests.acceptedAt,
  settledAt: requests.settledAt,
  erasedAt: requests.erasedAt,
};
const { updatedAt: _updatedAt, unchecked: _unchecked, ...STORED } = getTableColumns(storedEmails);

/**
 * Everything held about a provider, or under an address. For an NPI: its NPPES rows and the lookups and requests for
 * it; of an address: what names it.
 * @throws {DatabaseError}
 */
export async function exportSubject(db: Database, subject: DataSubject) {
  const npi = 'npi' in subject ? subject.npi : null;
  const isTheirs = (table: typeof storedEmails | typeof emailChecks | typeof requests) =>
    'npi' in subject ? eq(table.npi, subject.npi) : eq(table.email, subject.email);
  const { id, batchId, requestId, state, attempts, createdAt, decidedAt } = webhookDeliveries;
  return await query(db, async (tx) => ({
    providers: npi === null ? [] : await selectProviders(tx, npi),
    endpoints: await tx
      .select()
      .from(providerEndpoints)
      .where(
        'npi' in subject
          ? eq(providerEndpoints.npi, subject.npi)
          : sql`endpoint like '%@%' and endpoint_address(endpoint) = ${subject.email}`,
      )
      .orderBy(asc(providerEndpoints.npi), asc(providerEndpoints.endpoint)),
    storedEmails: await tx
      .select(STORED)
      .from(storedEmails)
      .where(isTheirs(storedEmails))
      .orderBy(asc(storedEmails.firstSeenAt)),
    emailChecks: await tx
      .select()
      .from(emailChecks)
      .where(isTheirs(emailChecks))
      .orderBy(asc(emailChecks.id)),
    lookups:
      npi === null
        ? []
        : await tx.select().from(lookups).where(eq(lookups.npi, npi)).orderBy(asc(lookups.openedAt)),
    requests: await tx
      .select(ANSWER)
      .from(requests)
      .where(isTheirs(requests))
      .orderBy(asc(requests.acceptedAt), asc(requests.id)),
    // Those that reported one of these answers, alone or with the rest of a batch.
    deliveries: await tx
      .selectDistinct({ id, batchId, requestId, state, attempts, createdAt, decidedAt })
      .from(webhookDeliveries)
      .innerJoin(
        requests,
        and(eq(requests.batchId, batchId), or(isNull(requestId), eq(requests.id, requestId))),
      )
      .where(isTheirs(requests))
      .orderBy(asc(createdAt), asc(id)),
    suppressions: await tx
      .select()
      .from(suppressions)
      .where(
        'npi' in subject
          ? and(eq(suppressions.kind, 'npi'), eq(suppressions.value, subject.npi))
          : and(eq(suppressions.kind, 'email'), eq(suppressions.value, hashAddress(subject.email))),
      ),
  }));
}

async function selectProviders(tx: Pick<Transaction, 'select'>, npi: string) {
  const rows = await tx.select(PROVIDER).from(providers).where(eq(providers.npi, npi));
  const locations = await tx.select(LOCATION).from(providerLocations).where(eq(providerLocations.npi, npi));
  return rows.map((row) => ({ ...row, locations }));
}
