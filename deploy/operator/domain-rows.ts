import { isEmployerDomain } from '../../activities/person/employer-domains.ts';
import { registrableDomain } from '../../activities/verification/domains.ts';
import { parseAddress } from '../../activities/verification/syntax.ts';
import { readNpi } from '../../api/files/cell.ts';
import type { Database } from '../../db/connection/client.ts';
import {
  type EmployerDomain,
  storeEmployerDomains,
} from '../../db/providers/employer-domains.ts';
import { organizationKey, pacIdOf } from '../../db/providers/keys.ts';
import type { CellOf, RowImport } from './rows.ts';

// The rules of `import domains`.

/** Returns the rules for importing the email domains of employers. */
export const domainRows = (db: Database): RowImport<EmployerDomain> => ({
  columns: ['organization', 'domain', 'npi', 'pac_id'],
  header: ['domain'],
  accepted: ['added', 'changed', 'removed', 'unchanged'],
  judge: judgeDomain,
  store: (rows) => storeEmployerDomains(db, rows),
});

/**
 * Checks a row of `import domains`. The organization is identified by its NPI or PAC id. Its name
 * is used only if both are missing, because several organizations can have the same name.
 */
function judgeDomain(cell: CellOf): EmployerDomain | string {
  const text = cell('domain');
  const host = text.replace(/^(?:[a-z]+:\/\/|.*@)/i, '').replace(/[/?#:].*$/, '');
  const domain = registrableDomain(parseAddress(`x@${host}`)?.domain ?? '');
  if (text !== '' && domain === null) {
    return 'not_a_domain';
  }
  if (domain !== null && !isEmployerDomain(domain)) {
    return 'not_an_employer';
  }
  if (cell('npi') !== '') {
    const { npi } = readNpi(cell('npi'));
    return npi === null ? 'invalid_npi' : { key: `npi:${npi}`, domain };
  }
  if (cell('pac_id') !== '') {
    const pacId = pacIdOf(cell('pac_id'));
    return pacId ? { key: `pac_id:${pacId}`, domain } : 'invalid_pac_id';
  }
  const key = organizationKey(cell('organization'));
  return key === '' ? 'no_organization' : { key: `name:${key}`, domain };
}
