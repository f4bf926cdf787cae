import { EnrichmentClient } from './client.ts';
import { EnrichmentError } from './errors.ts';
import packageJson from './package.json' with { type: 'json' };
import { printable } from './printable.ts';
import { UsageError } from './usage-error.ts';

/** The time for which a tool retries. It is short, because a person is waiting. */
const PATIENCE_MS = 20_000;
const SDK = '@modelcontextprotocol/sdk';

/**
 * Starts the MCP server. It ends with its standard input.
 * @returns the exit code if it doesn't start, otherwise 0
 */
export async function startMcp(): Promise<number> {
  try {
    const client = new EnrichmentClient(connectionOf(process.env));
    const { serve } = await importServer();
    await serve(client);
    return 0;
  } catch (error) {
    if (!(error instanceof UsageError || error instanceof EnrichmentError)) throw error;
    console.error(printable(`npi-email-enrichment: ${error.message}`));
    return 2;
  }
}

function connectionOf(environment: NodeJS.ProcessEnv) {
  const { NPI_EMAIL_URL: baseUrl, NPI_EMAIL_API_KEY: apiKey } = environment;
  if (!baseUrl || !apiKey) {
    throw new UsageError('Set NPI_EMAIL_URL and NPI_EMAIL_API_KEY in its environment.');
  }
  return { baseUrl, apiKey, patienceMs: PATIENCE_MS };
}

/** @throws {UsageError} if the MCP SDK is not installed, which only this command needs */
async function importServer() {
  try {
    return await import('./mcp-server.ts');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ERR_MODULE_NOT_FOUND') throw error;
    const version = packageJson.peerDependencies[SDK].replace('^', '');
    throw new UsageError(`The MCP SDK is missing. Run: npm install ${SDK}@${version}`);
  }
}
