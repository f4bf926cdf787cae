// The settings that test/clients.ts passes to each program of this folder.

function setting(name: string): string {
  const value = process.env[name];
  if (value === undefined)
    throw new Error(`${name} is missing: run this with \`npm run clients\``);
  return value;
}

export const baseUrl = setting('BASE_URL');
/** API keys of an organization with credits, one without, and one over its rate limit. */
export const keys = {
  usual: setting('API_KEY'),
  poor: setting('POOR_KEY'),
  busy: setting('BUSY_KEY'),
};
/** A receiver that accepts every delivery. */
export const webhookUrl = setting('WEBHOOK_URL');

export const FOUND = '2000000010';
export const NOT_FOUND = '2000000044';
export const UNKNOWN = 'bat_01jd9x6k2tf3r8t0z5q7w4m1ha';
