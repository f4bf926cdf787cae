import type { Need, Step, Subject } from './vendor.ts';

/** A person at their place of work, as vendors that search by name are told of them. */
export interface Employee {
  readonly kind: 'employee';
  readonly first: string;
  readonly last: string;
  /** At least one of the two is known. */
  readonly company: string | null;
  readonly domain: string | null;
}

/** @returns `skip` with all that is missing, where the name or both names of the organization are not known */
export function employeeOf(subject: Subject): Employee | Extract<Step, { kind: 'skip' }> {
  const missing = missingOf(subject, ['name', 'organization']);
  const { person, organization } = subject;
  if (missing.length > 0 || person === null || organization === null) return { kind: 'skip', missing };
  const { first, last } = person;
  return { kind: 'employee', first, last, company: organization.name, domain: organization.domain };
}

/** Which needs of a vendor are not met by what is known, in the order given. */
export function missingOf({ person, organization }: Subject, needs: readonly Need[]): Need[] {
  const met: Readonly<Record<Need, boolean>> = {
    npi: true,
    name: Boolean(person?.first && person.last),
    organization: Boolean(organization?.name || organization?.domain),
    address: Boolean(person?.practice.line1 && person.practice.state && person.practice.zip),
  };
  return needs.filter((need) => !met[need]);
}
