import { MODEL_RULES, type ModelState } from './model.ts';

/** All that the database should say of it, as text. */
export function viewModel({ organizations, batches }: ModelState): string[] {
  const lines = organizations.flatMap(({ available, held, used, charges }, index) => [
    `organization ${index}: total ${available + held + used} available ${available} held ${held} used ${used}`,
    // A later charge for the same NPI and type takes the place of the earlier one.
    ...new Map(
      charges.map(({ npi, emailType, request }) => {
        return [`${npi} ${emailType}`, `organization ${index} paid ${npi} ${emailType}: ${request}`];
      }),
    ).values(),
  ]);
  for (const [name, { organization, requests }] of Object.entries(batches)) {
    const settled = requests.filter(({ status }) => status !== 'accepted' && status !== 'in-progress').length;
    const status = settled === requests.length ? 'completed' : 'in-progress';
    lines.push(`batch ${name} of ${organization}: ${status} ${settled} of ${requests.length}`);
    for (const [position, one] of requests.entries()) {
      lines.push(
        `request ${name} ${position}: ${one.npi} ${one.status} replayed ${one.replayed} credits ${one.credits} ${one.email}`,
      );
    }
  }
  return lines.sort();
}

/** The instants at which something becomes possible or impossible. */
export function boundaries({ directory, organizations, batches }: ModelState): number[] {
  return [
    ...directory.map(({ at }) => at + MODEL_RULES.freshnessMs),
    ...organizations.flatMap(({ charges, answers }) => [
      ...charges.map(({ at }) => at + MODEL_RULES.replayMs),
      ...Object.values(answers).map(({ until }) => until),
    ]),
    ...Object.values(batches).map(({ deadline }) => deadline),
  ];
}
